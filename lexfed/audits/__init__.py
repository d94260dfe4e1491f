"""What an honest but curious server learns. It is handed only what crossed the wire."""
