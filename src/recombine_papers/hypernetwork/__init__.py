"""hypernetwork"""
