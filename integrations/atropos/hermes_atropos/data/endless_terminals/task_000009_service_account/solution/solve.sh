groupadd -g 4200 deploy
useradd -u 4201 -g deploy -d /opt/svc -M -s /usr/sbin/nologin svc
mkdir -p /opt/svc
chown svc:deploy /opt/svc
chmod 770 /opt/svc
grep -v '^#' /etc/svc.conf.dist | sed 's/^workers=1$/workers=4/' > /etc/svc.conf
chmod 644 /etc/svc.conf
echo '127.0.0.1 svc.internal' >> /etc/hosts
