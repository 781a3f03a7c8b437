grep -v '^#' $1 | awk -F';' '{ people[$2]++; hours[$2] = $3 }
    END { for (d in people) print d, hours[d], people[d] }'
