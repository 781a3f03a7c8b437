cat > wordfreq.sh <<'EOF'
[ -f "$1" ] || exit 2
tr 'A-Z' 'a-z' < "$1" | tr -cs 'a-z' '\n' | grep . | LC_ALL=C sort | uniq -c | LC_ALL=C sort -k1,1nr -k2,2 |
    head -n 3 | while read -r count word; do echo "$count $word"; done
EOF
