"""Who gets which slot: sandboxes come and go, slots are lent, reset and taken back."""
