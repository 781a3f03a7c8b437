package pipe

const sysMemfdCreate = 279
