python3 - <<'EOF'
import csv, json
from decimal import Decimal

with open("/home/user/data/customers.csv", newline="", encoding="utf-8") as file:
    names = {row["id"]: row["name"] for row in csv.DictReader(file)}
totals = dict.fromkeys(names.values(), Decimal(0))
with open("/home/user/data/orders.csv", newline="", encoding="utf-8") as file:
    for row in csv.DictReader(file):
        if row["customer"] in names:
            totals[names[row["customer"]]] += Decimal(row["amount"])
with open("/home/user/totals.json", "w") as file:
    json.dump({name: float(total) for name, total in totals.items()}, file)
EOF
