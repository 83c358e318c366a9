"""Flow control: options, groups, admission. Pure."""
