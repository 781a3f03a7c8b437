"""Who gets which slot: boxes come and go, slots are lent, reset and taken back."""
