"""Public tools for testing backends, tools and agents built on this package."""
