"""modular"""
