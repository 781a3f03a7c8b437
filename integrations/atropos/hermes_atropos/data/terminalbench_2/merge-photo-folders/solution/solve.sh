cd /data/phone
find . -type f | while IFS= read -r file; do
    target="/data/archive/$file"
    mkdir -p "$(dirname "$target")"
    if [ ! -e "$target" ]; then mv "$file" "$target"
    elif cmp -s "$file" "$target"; then rm "$file"
    else mv "$file" "${target%.*}-2.${target##*.}"
    fi
done
find . -mindepth 1 -type d -delete
