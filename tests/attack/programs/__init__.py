"""What runs in slots: plain Python of the image, with nothing but its standard library."""
