cat > /app/roman <<'EOF'
#!/bin/bash
parts=(M 1000 CM 900 D 500 CD 400 C 100 XC 90 L 50 XL 40 X 10 IX 9 V 5 IV 4 I 1)
numeral() {
    local n=$1 i out=
    for ((i = 0; i < ${#parts[@]}; i += 2)); do
        while ((n >= parts[i + 1])); do out+=${parts[i]}; ((n -= parts[i + 1])); done
    done
    echo "$out"
}
if [[ $1 =~ ^[1-9][0-9]{0,3}$ ]] && (($1 < 4000)); then numeral "$1"; exit 0; fi
if [[ $1 =~ ^[IVXLCDM]+$ ]]; then
    n=0 left=$1
    for ((i = 0; i < ${#parts[@]}; i += 2)); do
        while [[ $left == "${parts[i]}"* ]]; do left=${left#"${parts[i]}"}; ((n += parts[i + 1])); done
    done
    if [[ -z $left ]] && ((n < 4000)) && [[ $(numeral $n) == "$1" ]]; then echo $n; exit 0; fi
fi
exit 1
EOF
chmod +x /app/roman
