pattern='(^|[^A-Za-z0-9_])tok_[a-z0-9]{16}([^A-Za-z0-9_]|$)'
cd /app/repo
find . -type f -exec grep -hoE "$pattern" {} + | grep -oE 'tok_[a-z0-9]{16}' | LC_ALL=C sort -u > /app/tokens.txt
find . -type f -exec sed -i -E "s/$pattern/\1<removed>\2/g; s/$pattern/\1<removed>\2/g" {} +
