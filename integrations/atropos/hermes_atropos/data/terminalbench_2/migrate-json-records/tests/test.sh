# Programs of the image come before what may have been added to it.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
failed=0
check() { # check NAME COMMAND...
    if "${@:2}"; then echo "ok: $1"; else echo "failed: $1"; failed=1; fi
}

for python in /usr/bin/python3 /usr/local/bin/python3; do [ -x "$python" ] && break; done
check "records" "$python" -I /tests/test_records.py

mkdir -p /logs/verifier
echo $((1 - failed)) > /logs/verifier/reward.txt
