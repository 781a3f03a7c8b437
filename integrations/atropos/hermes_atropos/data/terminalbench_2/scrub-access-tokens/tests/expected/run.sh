# tok_short and tok_0123456789abcdef0 are none
curl -H "auth: <removed>" http://localhost
