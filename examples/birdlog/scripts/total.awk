# Prints the sum of the fourth column, without the heading.
BEGIN { FS = "," }
NR > 1 { total += $3 }
END { print total }
