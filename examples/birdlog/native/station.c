#include <stdio.h>

#include "checksum.h"

int main(void)
{
    unsigned char line[256];
    size_t length = fread(line, 1, sizeof line, stdin);

    printf("%04x\n", checksum(line, length));
    return 0;
}
