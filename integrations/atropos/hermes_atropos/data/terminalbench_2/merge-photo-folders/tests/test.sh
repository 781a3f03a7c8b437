# Programs of the image come before what may have been added to it.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
failed=0
check() { # check NAME COMMAND...
    if "${@:2}"; then echo "ok: $1"; else echo "failed: $1"; failed=1; fi
}

listing() { (cd /data/archive && find . -type f | LC_ALL=C sort | while IFS= read -r f; do echo "$f=$(cat "$f")"; done); }
wanted="./.hidden=top
./2023/may/1.jpg=one
./2023/may/my dog-2.jpg=two
./2023/may/my dog.jpg=other
./2024/v1.2.raw=new
./index=kept"
archive() { [ "$(listing)" = "$wanted" ]; }
emptied() { [ -d /data/phone ] && [ ! -L /data/phone ] && [ -z "$(ls -A /data/phone)" ]; }
check "the archive" archive
check "the phone" emptied

mkdir -p /logs/verifier
echo $((1 - failed)) > /logs/verifier/reward.txt
