mkdir -p src/sub
echo hello > src/hello.txt
seq 100 > src/sub/numbers.txt
sha256sum src/hello.txt src/sub/numbers.txt > SHA256SUMS
mkdir release-1.0
cp -r src SHA256SUMS release-1.0/
tar -czf release.tar.gz release-1.0
rm -r release-1.0
