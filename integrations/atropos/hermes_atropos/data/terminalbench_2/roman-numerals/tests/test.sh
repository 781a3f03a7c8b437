# Programs of the image come before what may have been added to it.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
failed=0
check() { # check NAME COMMAND...
    if "${@:2}"; then echo "ok: $1"; else echo "failed: $1"; failed=1; fi
}

gives() { [ "$(/app/roman "$1" 2>/dev/null)" = "$2" ]; }
refuses() { out=$(/app/roman "$@" 2>/dev/null); [ $? -eq 1 ] && [ -z "$out" ]; }
for pair in 1=I 4=IV 9=IX 14=XIV 40=XL 90=XC 400=CD 444=CDXLIV 1994=MCMXCIV 2024=MMXXIV 3999=MMMCMXCIX; do
    check "$pair" gives "${pair%=*}" "${pair#*=}"
    check "${pair#*=} back" gives "${pair#*=}" "${pair%=*}"
done
for wrong in 0 4000 IIII IC VX MMMM -1 1.5 iv "X X" abc ""; do check "refuses '$wrong'" refuses "$wrong"; done
check "no argument" refuses

mkdir -p /logs/verifier
echo $((1 - failed)) > /logs/verifier/reward.txt
