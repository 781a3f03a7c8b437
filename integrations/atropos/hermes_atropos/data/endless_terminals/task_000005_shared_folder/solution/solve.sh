find /srv/share -type d -exec chmod 0750 {} +
find /srv/share -type d -exec chmod g-s,u-s {} +
find /srv/share -type f -exec chmod 0640 {} +
find /srv/share -type f -name '*.sh' -exec chmod 0750 {} +
find /srv/share -type f -name '*.key' -exec chmod 0600 {} +
