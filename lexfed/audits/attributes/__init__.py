"""Who is the user? Gender and age, from what it uploads."""
