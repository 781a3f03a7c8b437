awk 'NF != 5 { damaged++; next }
     { requests++; if ($4 >= 500) errors++; bytes[$1] += $5 }
     END { for (ip in bytes) if (bytes[ip] > most) { most = bytes[ip]; busiest = ip }
           printf "requests=%d\ndamaged=%d\nerrors=%d\nbusiest=%s\n", requests, damaged, errors, busiest }' \
    /home/user/logs/access.log > /home/user/report.txt
