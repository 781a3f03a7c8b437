"""Read-only access to slots that other programs of this user hold."""
