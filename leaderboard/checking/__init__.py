"""Is a defense fit to be submitted?"""
