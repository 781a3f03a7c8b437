# Programs of the image come before what may have been added to it.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
failed=0
check() { # check NAME COMMAND...
    if "${@:2}"; then echo "ok: $1"; else echo "failed: $1"; failed=1; fi
}

unchanged() { [ "$(sha256sum < /app/staff.txt)" = "$(sha256sum < /tests/staff.txt)" ]; }
prints() { [ "$(cd / && sh /app/report.sh "$1" 2>/dev/null)" = "$2" ]; }
check "staff.txt is unchanged" unchanged
check "the file of the task" prints /app/staff.txt "$(printf 'ops 2 75\nresearch 3 96\nsales 1 40')"
printf '# c\n\nA;x y;1\nB;x y;2\n#B;z;5\nC;a;0\n' > "/tmp/other staff"
check "another file" prints "/tmp/other staff" "$(printf 'a 1 0\nx y 2 3')"

mkdir -p /logs/verifier
echo $((1 - failed)) > /logs/verifier/reward.txt
