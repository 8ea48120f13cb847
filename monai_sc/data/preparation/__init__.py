"""Data sets as they are downloaded, made into the folders that the bundles read."""
