cd /opt/app
present=$(basename "$(readlink current)")
echo "$present" > quarantine.txt
for release in $(ls releases | sort -r); do
    [ "$release" \< "$present" ] || continue
    if [ "$(cat "releases/$release/status")" = healthy ]; then chosen=$release; break; fi
done
ln -sfn "releases/$chosen" current
for release in $(ls releases); do
    if [ "$release" \< "$chosen" ]; then rm -r "releases/$release"; fi
done
