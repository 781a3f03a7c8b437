"""Episodes in the forms that training takes."""
