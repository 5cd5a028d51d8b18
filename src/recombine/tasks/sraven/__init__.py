"""sraven"""
