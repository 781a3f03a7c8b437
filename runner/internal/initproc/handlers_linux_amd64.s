#include "textflag.h"

// onTermination(signal DI, siginfo SI, context DX), as the kernel calls it:
// write(terminationPipe, siginfo, 24).
TEXT onTermination<>(SB), NOSPLIT|NOFRAME, $0
	MOVL ·terminationPipe(SB), DI
	MOVL $24, DX
	MOVL $1, AX
	SYSCALL
	RET

// onRestriction(signal DI, siginfo SI, context DX): capset(restriction[0], restriction[1]).
TEXT onRestriction<>(SB), NOSPLIT|NOFRAME, $0
	MOVQ ·restriction+0(SB), DI
	MOVQ ·restriction+8(SB), SI
	MOVL $126, AX
	SYSCALL
	RET

// Signal handlers return to this function on amd64: rt_sigreturn().
TEXT returnFromSignal<>(SB), NOSPLIT|NOFRAME, $0
	MOVL $15, AX
	SYSCALL
	INT  $3

// disregard(signal, siginfo, context) does nothing.
TEXT disregard<>(SB), NOSPLIT|NOFRAME, $0
	RET

DATA ·disregardHandler(SB)/8, $disregard<>(SB)
GLOBL ·disregardHandler(SB), RODATA, $8

DATA ·terminationHandler(SB)/8, $onTermination<>(SB)
GLOBL ·terminationHandler(SB), RODATA, $8

DATA ·signalReturn(SB)/8, $returnFromSignal<>(SB)
GLOBL ·signalReturn(SB), RODATA, $8

DATA ·restrictionHandler(SB)/8, $onRestriction<>(SB)
GLOBL ·restrictionHandler(SB), RODATA, $8
