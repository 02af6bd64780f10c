"""What has to be undone, on the disk before it is done."""
