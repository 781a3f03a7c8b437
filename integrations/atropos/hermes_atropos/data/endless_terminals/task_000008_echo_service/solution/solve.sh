cat > /home/user/service/start.sh <<'EOF'
cd /home/user/service || exit 1
if [ -f server.pid ] && kill -0 "$(cat server.pid)" 2>/dev/null; then exit 0; fi
nohup python3 server.py > server.log 2>&1 < /dev/null &
echo $! > server.pid
for _ in $(seq 80); do
    python3 -c 'import socket, sys; socket.create_connection(("127.0.0.1", int(open("port").read())), 1)' 2>/dev/null &&
        exit 0
    sleep 0.1
done
exit 1
EOF
cat > /home/user/service/stop.sh <<'EOF'
cd /home/user/service || exit 1
[ -f server.pid ] || exit 0
kill "$(cat server.pid)" 2>/dev/null
rm -f server.pid
exit 0
EOF
