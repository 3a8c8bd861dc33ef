"""The three files that a MiniCPM-o folder carries for trust_remote_code: copied there, and named in its auto_map."""
