cd /var/backups
mkdir -p damaged
newest=
for archive in site-*.tar.gz; do
    if tar -tzf "$archive" >/dev/null 2>&1; then newest=$archive; else mv "$archive" damaged/; fi
done
rm -rf /home/user/site
mkdir -p /home/user/site
tar -xzf "$newest" -C /home/user/site
echo "$newest" > /home/user/restored.txt
