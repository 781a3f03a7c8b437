#include "textflag.h"

// onTermination(signal R0, siginfo R1, context R2), as the kernel calls it:
// write(terminationPipe, siginfo, 24). It returns to the kernel's own code.
TEXT onTermination<>(SB), NOSPLIT|NOFRAME, $0
	MOVW ·terminationPipe(SB), R0
	MOVD $24, R2
	MOVD $64, R8
	SVC
	RET

// onRestriction(signal R0, siginfo R1, context R2): capset(restriction[0], restriction[1]).
TEXT onRestriction<>(SB), NOSPLIT|NOFRAME, $0
	MOVD ·restriction+0(SB), R0
	MOVD ·restriction+8(SB), R1
	MOVD $91, R8
	SVC
	RET

// disregard(signal, siginfo, context) does nothing.
TEXT disregard<>(SB), NOSPLIT|NOFRAME, $0
	RET

DATA ·disregardHandler(SB)/8, $disregard<>(SB)
GLOBL ·disregardHandler(SB), RODATA, $8

DATA ·terminationHandler(SB)/8, $onTermination<>(SB)
GLOBL ·terminationHandler(SB), RODATA, $8

DATA ·signalReturn(SB)/8, $0
GLOBL ·signalReturn(SB), RODATA, $8

DATA ·restrictionHandler(SB)/8, $onRestriction<>(SB)
GLOBL ·restrictionHandler(SB), RODATA, $8
