"""Every reader of what others write, fed with what nobody should write."""
