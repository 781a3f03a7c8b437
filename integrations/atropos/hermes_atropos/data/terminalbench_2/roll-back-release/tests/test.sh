# Programs of the image come before what may have been added to it.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
failed=0
check() { # check NAME COMMAND...
    if "${@:2}"; then echo "ok: $1"; else echo "failed: $1"; failed=1; fi
}

link() { [ -L /opt/app/current ] && [ "$(readlink /opt/app/current)" = releases/20240301 ] && [ -f /opt/app/current/version ]; }
left() { [ "$(ls -A /opt/app/releases | tr '\n' ' ')" = "20240301 20240310 20240402 20240403 " ]; }
named() { [ "$(cat /opt/app/quarantine.txt)" = 20240402 ]; }
check "the link" link
check "releases that are left" left
check "quarantine" named

mkdir -p /logs/verifier
echo $((1 - failed)) > /logs/verifier/reward.txt
