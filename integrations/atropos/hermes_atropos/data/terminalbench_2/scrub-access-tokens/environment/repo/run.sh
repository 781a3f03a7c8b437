# tok_short and tok_0123456789abcdef0 are none
curl -H "auth: tok_zzzz9999yyyy8888" http://localhost
