# Two whole archives and two damaged ones: one that is cut, one that is no archive.
set -e
mkdir -p /var/backups /home/user/site /tmp/site/css
echo stale > /home/user/site/stale.html
cd /tmp/site
echo 'body {}' > css/main.css
echo 'version 1' > index.html
tar -czf /var/backups/site-2024-03-01.tar.gz index.html css
echo 'version 2' > index.html
tar -czf /var/backups/site-2024-03-02.tar.gz index.html css
echo 'version 3' > index.html
tar -czf /tmp/whole.tar.gz index.html css
head -c 100 /tmp/whole.tar.gz > /var/backups/site-2024-03-03.tar.gz
echo 'no archive' > /var/backups/site-2024-03-04.tar.gz
rm -rf /tmp/site /tmp/whole.tar.gz
