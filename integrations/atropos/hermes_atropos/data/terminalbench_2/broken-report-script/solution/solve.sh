cat > /app/report.sh <<'EOF'
grep -v -e '^#' -e '^$' "$1" | awk -F';' '{ people[$2]++; hours[$2] += $3 }
    END { for (d in people) print d, people[d], hours[d] }' | LC_ALL=C sort
EOF
