"""length"""
