# Programs of the image come before what may have been added to it.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
failed=0
check() { # check NAME COMMAND...
    if "${@:2}"; then echo "ok: $1"; else echo "failed: $1"; failed=1; fi
}

same_files() { [ "$(cd /app/repo && find . -type f | LC_ALL=C sort | tr '\n' ' ')" = "./.env ./docs/notes.md ./run.sh " ]; }
modes() { [ "$(stat -c %a /app/repo/run.sh /app/repo/.env | tr '\n' ' ')" = "755 600 " ]; }
check "which files there are" same_files
check "modes" modes
for file in .env docs/notes.md run.sh; do
    check "$file" cmp -s "/app/repo/$file" "/tests/expected/$file"
done
check "tokens" cmp -s /app/tokens.txt /tests/expected/tokens.txt

mkdir -p /logs/verifier
echo $((1 - failed)) > /logs/verifier/reward.txt
