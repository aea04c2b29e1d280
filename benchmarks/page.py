def page(found, machine, week):
    return ""
