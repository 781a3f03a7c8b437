cd /app/logs
for log in *.log; do
    awk -v service="${log%.log}" '($2 == "ERROR" || $2 == "FATAL") && !seen[$0]++ {
        time = $1; $1 = ""; print time " " service $0 }' "$log"
done | LC_ALL=C sort -s -k1,2 > /app/timeline.txt
