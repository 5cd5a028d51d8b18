"""in_context"""
