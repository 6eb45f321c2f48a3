"""Who owns what runs, agreed among hosts any of which may be lost (DESIGN: Ownership). Sans-I/O."""
