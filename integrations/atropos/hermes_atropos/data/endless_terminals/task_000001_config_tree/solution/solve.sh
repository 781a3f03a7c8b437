mkdir -p etc/service/enabled var/log/service
printf '[server]\nhost = 127.0.0.1\nport = 8080\n\n[limits]\nconnections = 64\n' > etc/service/main.ini
ln -s ../main.ini etc/service/enabled/main.ini
echo 1.4.0 > VERSION
