"""Small generated data sets in the layouts of the official ones, to try everything without a download."""
