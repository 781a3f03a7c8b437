mkdir -p /app/v2
python3 - <<'EOF'
import json, pathlib

broken = []
for path in sorted(pathlib.Path("/app/v1").glob("*.json")):
    try:
        old = json.loads(path.read_text())
    except ValueError:
        broken.append(path.name)
        continue
    last, comma, first = old["name"].partition(",")
    new = {
        "id": int(old["id"]),
        "name": {"first": first.strip() if comma else None, "last": last.strip()},
        "tags": sorted({tag.strip() for tag in old["tags"].split(",")} - {""}),
        "active": old.get("active") == "yes",
    }
    pathlib.Path("/app/v2", path.name).write_text(json.dumps(new))
pathlib.Path("/app/broken.txt").write_text("".join(f"{name}\n" for name in broken))
EOF
